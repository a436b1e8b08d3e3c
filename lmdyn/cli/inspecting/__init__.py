"""Parts of ``lmdyn inspect``: the model and the data of given names, measurements, the page and the yaml."""
