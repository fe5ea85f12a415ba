"""Schemas of Protobuf for tests, as a compiler would give them to a registry."""

from __future__ import annotations

from base64 import b64encode

from google.protobuf import text_format
from google.protobuf.descriptor_pb2 import FileDescriptorProto

ORDERS_SOURCE = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
message Order {
  message Line { string sku = 1; int32 count = 2; }
  int64 id = 1;
  string customer = 2;
  State state = 3;
  repeated Line lines = 4;
  google.protobuf.Timestamp at = 5;
  bytes payload = 6;
  map<string, string> labels = 7;
}
message Bill { int64 id = 1; }
enum State { NEW = 0; PAID = 1; }
"""
"""What `ORDERS` was made of."""

ORDERS: FileDescriptorProto = text_format.Parse(
    """
    name: "orders.proto" package: "shop" syntax: "proto3"
    dependency: "google/protobuf/timestamp.proto"
    message_type {
      name: "Order"
      field { name: "id" number: 1 label: LABEL_OPTIONAL type: TYPE_INT64 }
      field { name: "customer" number: 2 label: LABEL_OPTIONAL type: TYPE_STRING }
      field { name: "state" number: 3 label: LABEL_OPTIONAL type: TYPE_ENUM type_name: ".shop.State" }
      field { name: "lines" number: 4 label: LABEL_REPEATED type: TYPE_MESSAGE type_name: ".shop.Order.Line" }
      field { name: "at" number: 5 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: ".google.protobuf.Timestamp" }
      field { name: "payload" number: 6 label: LABEL_OPTIONAL type: TYPE_BYTES }
      field { name: "labels" number: 7 label: LABEL_REPEATED type: TYPE_MESSAGE type_name: ".shop.Order.LabelsEntry" }
      nested_type {
        name: "Line"
        field { name: "sku" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }
        field { name: "count" number: 2 label: LABEL_OPTIONAL type: TYPE_INT32 }
      }
      nested_type {
        name: "LabelsEntry"
        field { name: "key" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }
        field { name: "value" number: 2 label: LABEL_OPTIONAL type: TYPE_STRING }
        options { map_entry: true }
      }
    }
    message_type { name: "Bill" field { name: "id" number: 1 label: LABEL_OPTIONAL type: TYPE_INT64 } }
    enum_type { name: "State" value { name: "NEW" number: 0 } value { name: "PAID" number: 1 } }
    """,
    FileDescriptorProto(),
)


def serialized(file: FileDescriptorProto) -> str:
    """As a registry gives it with `format=serialized`."""
    return b64encode(file.SerializeToString()).decode()
