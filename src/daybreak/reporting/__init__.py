"""Reports: run folders in, one HTML or Markdown page out. Reads files through ``core`` and never imports torch."""
