"""Tables of Apache Iceberg as something outside: how catalogs are named and reached, and what their errors mean."""
