"""Indices of OpenSearch and Elasticsearch: the sink."""
