"""`lmdyn check`: what is known of a configuration, a replay or a chain before anything is trained."""
