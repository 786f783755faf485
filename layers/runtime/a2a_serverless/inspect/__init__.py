"""What a person who looks at a task wants to know, made of what is stored. Pure."""
