"""What of a user's folders, modules and configurations may be read and imported."""
