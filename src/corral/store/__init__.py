"""The database: one schema, one file of statements, SQLite for one machine and PostgreSQL for many managers."""
