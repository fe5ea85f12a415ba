package main

import (
	"slices"
	"testing"

	"github.com/millstream/millstream/sdk/go/udf"
	"github.com/millstream/millstream/sdk/go/udftest"
)

func of(user, payment string) udf.Record {
	return udf.Record{Keys: []string{user}, Value: []byte(payment)}
}

func TestPayAddsToWhatItRemembers(t *testing.T) {
	states := udftest.NewStates(t, udf.NewMap(pay, udf.States(total, largest, payments)))
	ada := states.Key("ada")
	if err := total.Set(ada, 1200); err != nil {
		t.Fatal(err)
	}
	results := states.Map(of("ada", `{"user":"ada","cents":50}`), of("alan", `{"user":"alan","cents":7}`))
	expected := []string{
		`{"user":"ada","payment":1,"total":1250,"largest":50}`, `{"user":"alan","payment":1,"total":7,"largest":7}`,
	}
	if got := results.Values(); !slices.Equal(got, expected) {
		t.Error(got)
	}
	if after, err := total.Get(ada); after != 1250 || err != nil {
		t.Error(after, err)
	}
}

func TestWhatIsDroppedLeavesNoChange(t *testing.T) {
	states := udftest.NewStates(t, udf.NewMap(pay, udf.States(total, largest, payments)))
	results := states.Map(of("ada", `{"user":"ada","cents":-5}`))
	if len(results.Outcomes) != 1 || results.Outcomes[0].Result != "drop" || len(states.All()) > 0 {
		t.Error(results, states.All())
	}
}
