package main

import (
	"slices"
	"testing"

	"github.com/millstream/millstream/sdk/go/udf"
	"github.com/millstream/millstream/sdk/go/udftest"
)

func TestWords(t *testing.T) {
	results := udftest.Map(t, udf.NewMap(words), udftest.Values("to be", "", "or")...)
	if got := results.Values(); !slices.Equal(got, []string{"TO", "BE", "OR"}) {
		t.Error(got)
	}
	if keys := results.Messages[1].Keys; !slices.Equal(keys, []string{"BE"}) {
		t.Error(keys)
	}
}
