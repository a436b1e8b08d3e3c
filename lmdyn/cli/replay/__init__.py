"""What a replay is made of: who makes which observation, what is read ahead, what failed."""
