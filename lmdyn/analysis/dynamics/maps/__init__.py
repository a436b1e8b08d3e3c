"""The map that a module iterates: its copy, its core, and passages of a state through its own forward."""
