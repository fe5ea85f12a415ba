"""External tables of Apache Iceberg: how catalogs are named and reached, and what their errors mean."""
