"""Presentation of claims' verdicts: words, tables in the terminal, Markdown, a page, figures."""
