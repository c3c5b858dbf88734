"""The results pages: tables and figures from the records, prose from templates."""
