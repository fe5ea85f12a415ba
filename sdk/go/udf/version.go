package udf

// Version is that of this SDK.
const Version = "0.1.0"
