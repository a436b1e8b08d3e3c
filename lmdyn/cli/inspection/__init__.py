"""What ``lmdyn inspect`` is made of: the model and the data that names stand for, what is measured, page and yaml."""
