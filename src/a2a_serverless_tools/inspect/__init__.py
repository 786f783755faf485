"""What a person who looks at a task wants to know, derived from what is stored. Pure."""
