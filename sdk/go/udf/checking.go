package udf

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"

	"github.com/millstream/millstream/sdk/go/internal/wire/udfv1"
)

// checkVariable has the path of the report that `millstream validate --import` wants instead of a function that serves. It
// knows by this name, which is in the program, that the program can report.
const checkVariable = "MILLSTREAM_UDF_CHECK"

type report struct {
	Fault          string          `json:"fault,omitempty"`
	Message        string          `json:"message,omitempty"`
	Function       string          `json:"function"`
	Kinds          []string        `json:"kinds"`
	Takes          string          `json:"takes"`
	Gives          string          `json:"gives"`
	Language       string          `json:"language"`
	KeepsPositions bool            `json:"keeps_positions"`
	States         []reportedState `json:"states"`
}

type reportedState struct {
	Name      string `json:"name"`
	Kind      string `json:"kind"`
	Codec     string `json:"codec"`
	ItemCodec string `json:"item_codec"`
	Version   uint32 `json:"version"`
	Clock     string `json:"clock"`
}

// report says what the function is, or that it cannot be served.
func (f *Function) report() report {
	made := report{
		Function: filepath.Base(os.Args[0]), Kinds: []string{kindNames[f.kind]}, Language: "go",
		KeepsPositions: f.positions != nil, States: []reportedState{},
	}
	if f.fault != nil {
		made.Fault, made.Message = "function", f.fault.Error()
	}
	for _, state := range f.states {
		clock := "event"
		if state.Clock == udfv1.State_CLOCK_PROCESSING_TIME {
			clock = "processing"
		}
		made.States = append(made.States, reportedState{
			state.Name, strings.ToLower(strings.TrimPrefix(state.Kind.String(), "KIND_")), state.Codec, state.ItemCodec,
			state.Version, clock,
		})
	}
	return made
}

// writeReport writes the report to a file, which is read after the process has ended.
func (f *Function) writeReport(path string) error {
	data, err := json.Marshal(f.report())
	if err != nil {
		return err
	}
	return os.WriteFile(path, data, 0o600)
}
