"""Drawing of the sections of a report: of one observer, in parallel, and only if something has changed."""
