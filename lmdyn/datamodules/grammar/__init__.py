"""The synthetic language with tags, trees, roles and facts."""
