"""Files of text and data sets of Hugging Face's: read in one place, which says what is wrong with them and where."""
