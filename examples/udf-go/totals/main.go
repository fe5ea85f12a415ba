// A Millstream map in Go that remembers: what each user has paid so far. examples/totals is the same in Python.
package main

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/millstream/millstream/sdk/go/udf"
)

type payment struct {
	User  string `json:"user"`
	Cents int64  `json:"cents"`
}

type account struct {
	User    string `json:"user"`
	Payment int64  `json:"payment"`
	Total   int64  `json:"total"`
	Largest int64  `json:"largest"`
}

var (
	total    = udf.NewValueState[int64]("total")
	largest  = udf.NewValueState[int64]("largest")
	payments = udf.NewCounterState("payments")
)

// pay is called with the states of the user whose payment the record is.
func pay(ctx context.Context, record udf.Record) ([]udf.Message, error) {
	paid, err := udf.FromJSON[payment](record.Value)
	if err != nil {
		return nil, err
	}
	if paid.Cents <= 0 {
		return nil, udf.Drop{Reason: "nothing was paid"}
	}
	now := account{User: paid.User}
	if now.Total, err = total.Get(ctx); err != nil {
		return nil, err
	}
	if now.Largest, err = largest.Get(ctx); err != nil {
		return nil, err
	}
	if now.Payment, err = payments.Add(ctx, 1); err != nil {
		return nil, err
	}
	now.Total += paid.Cents
	now.Largest = max(now.Largest, paid.Cents)
	if err := errors.Join(total.Set(ctx, now.Total), largest.Set(ctx, now.Largest)); err != nil {
		return nil, err
	}
	value, err := json.Marshal(now)
	return []udf.Message{{Value: value}}, err
}

func main() { udf.Main(udf.NewMap(pay, udf.States(total, largest, payments))) }
