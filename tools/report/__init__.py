"""What people read: self-contained HTML pages, tables and progress on the terminal, and the reports of single commands.

A page is made of cards; a `TableRow` has formatted cells, which pages and the terminal share.
"""
