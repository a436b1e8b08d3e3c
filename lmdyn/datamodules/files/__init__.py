"""Reading text files and Hugging Face data sets, with errors that say what is wrong and where."""
