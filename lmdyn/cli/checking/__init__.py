"""`lmdyn check`: known problems of a configuration, a replay or a chain before anything is trained."""
