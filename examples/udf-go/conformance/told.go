package main

import (
	"context"
	"fmt"

	"github.com/millstream/millstream/sdk/go/udf"
)

// told returns what the function is given, and counts its records.
func told(_ context.Context, record udf.Record) ([]udf.Message, error) {
	var config struct {
		Threshold float64 `json:"threshold"`
	}
	if err := udf.Config(&config); err != nil {
		return nil, err
	}
	key, err := udf.Secret("key")
	if err != nil {
		return nil, err
	}
	udf.Counter("records", udf.Labels{"value": string(record.Value)}).Add(1)
	return []udf.Message{{Value: fmt.Appendf(nil, "%g %s", config.Threshold, key)}}, nil
}
