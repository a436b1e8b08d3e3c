"""From words and yaml files to objects: the parser, its errors, and the names of shipped configurations."""
