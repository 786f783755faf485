// What the scripts beside it share, whichever version of the official JavaScript client they run.

export async function clientOf({ ClientFactory, ClientFactoryOptions }, url, binding) {
  const options = ClientFactoryOptions.createFrom(ClientFactoryOptions.default, { preferredTransports: [binding] });
  return new ClientFactory(options).createFromUrl(url);
}

export const print = (line) => console.log(JSON.stringify(line));

// Says what came of an operation in words, or the error.
export async function tried(operation, call) {
  try {
    print({ operation, says: String(await call()) });
  } catch (error) {
    print({ operation, error: `${error.name}: ${error.message}` });
  }
}

// Says each event, by its kind and content, and the error that ends the stream.
export async function followed(stream, read, told) {
  try {
    for await (const event of stream) {
      const { kind, content } = read(event);
      print({ kind, ...told[kind](content) });
    }
  } catch (error) {
    print({ kind: "error", name: error.name, says: error.message });
  }
}
