# frozen_string_literal: true

# simple_a2a's own client does every operation that it has: ruby -I LIB operations.rb URL BINDING RECEIVER
# Prints one JSON line for each: what came of it in words, or the error. LIB is the gem's lib.

require "simple_a2a"
require "async/http/internet"

# Debian's async-http takes headers and body by their place, and the one that the gem asks for by name.
if Async::HTTP::Internet.instance_method(:post).parameters.none? { |kind, name| kind == :key && name == :body }
  Async::HTTP::Internet.prepend(
    Module.new do
      def post(url, headers: {}, body: nil) = super(url, headers.to_a, body)
      def get(url, headers: {}) = super(url, headers.to_a)
    end,
  )
end

url, _binding, receiver = ARGV
$client = A2A.sse_client(url: url)

def tried(operation)
  puts JSON.generate({ operation: operation, says: yield.to_s })
rescue StandardError => e
  puts JSON.generate({ operation: operation, error: "#{e.class}: #{e.message}" })
ensure
  $stdout.flush
end

def rpc(method, params) = $client.send(:rpc_call, method, params)

def message(text)
  { "messageId" => SecureRandom.uuid, "role" => "user", "parts" => [{ "text" => text, "mediaType" => "text/plain" }] }
end

def words(parts) = (parts || []).map(&:text).join

def told(task)
  texts = (task.artifacts || []).map { |artifact| words(artifact.parts) }
  texts = [words(task.status.message&.parts)] if texts.empty?
  "#{task.status.state}: #{texts.join}"
end

task = question = running = nil

tried("card") { $client.agent_card.name }
tried("send") { told(task = $client.send_task(message: message("go"))) }
tried("stream") do
  texts = []
  state = nil
  $client.send_subscribe(message: message("go")) do |event|
    case event
    when A2A::Models::TaskStatusUpdateEvent then state = event.status.state
    when A2A::Models::TaskArtifactUpdateEvent then texts << words(event.artifact.parts)
    end
  end
  "#{state}: #{texts.join}"
end
tried("get") { told($client.get_task(task.id)) }
tried("list") { $client.list_tasks.map(&:id).include?(task.id) }
tried("question") { told(question = $client.send_task(message: message("ask"))) }
tried("answer") { told($client.send_task(message: message("go"), task_id: question.id)) }
tried("start") do
  $client.send_subscribe(message: message("obey")) do |event|
    running ||= event.is_a?(Hash) ? event["id"] : event.task_id
    throw :left
  end
rescue UncaughtThrowError
  !running.nil?
end
tried("set push") do
  config = { "webhookUrl" => receiver }
  made = rpc("tasks/pushNotification/set", { "id" => running, "pushNotificationConfig" => config })
  made["pushNotificationConfig"]["webhookUrl"] == receiver
end
tried("get push") do
  found = rpc("tasks/pushNotification/get", { "id" => running })
  found["pushNotificationConfig"]["webhookUrl"] == receiver
end
tried("list push") { rpc("tasks/pushNotification/list", {}).length }
tried("delete push") do
  rpc("tasks/pushNotification/delete", { "id" => running })
  rpc("tasks/pushNotification/list", {}).length
end
tried("subscribe") do
  state = nil
  canceling = Thread.new do
    sleep 0.5
    tried("cancel") { told($client.cancel_task(running)) }
  end
  $client.resubscribe(task_id: running) { |event| state = event.status.state if event.is_a?(A2A::Models::TaskStatusUpdateEvent) }
  canceling.join
  state
end
tried("unknown task") { $client.get_task("unknown") }
