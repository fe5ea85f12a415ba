package udf

// Version is the version of this SDK.
const Version = "0.2.0"
