"""Claims of each publication: a file ``<author><year>_<word>.py`` for each study, with ``STUDY``, and its numbers."""
