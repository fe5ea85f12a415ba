package udf

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"
)

// misfitCode is MS-3005 of Millstream's catalogue of errors: a record does not fit the type that its function accepts.
const misfitCode = 3005

// Misfit is an error about a record that does not fit the type that the function accepts. A retry would not help, so
// there is none: `onFailure` of the vertex's retry strategy decides, with the code MS-3005. In a reduce function it
// applies to the group.
type Misfit struct{ Reason string }

func (m Misfit) Error() string { return m.Reason }

// FromJSON decodes a value with encoding/json. Its error is a Misfit that names the type and the field. Missing fields
// keep their zero values, and unknown ones are ignored, as usual in encoding/json.
func FromJSON[T any](value []byte) (T, error) {
	var decoded T
	err := json.Unmarshal(value, &decoded)
	if err == nil {
		return decoded, nil
	}
	var zero T
	owner := reflect.TypeOf(&zero).Elem().String()
	var kind *json.UnmarshalTypeError
	if errors.As(err, &kind) {
		what := kind.Value
		if os.Getenv("MILLSTREAM_UDF_VALUES") == "hidden" {
			// "number 300": without the number.
			what, _, _ = strings.Cut(what, " ")
		}
		where := "it"
		if kind.Field != "" {
			where = "field `" + kind.Field + "`"
		}
		return zero, Misfit{fmt.Sprintf("the value does not fit %s: %s is %s, where %s is expected", owner, where, what, kind.Type)}
	}
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		return zero, Misfit{fmt.Sprintf("the value does not fit %s: it is not JSON, at byte %d of %d", owner, syntax.Offset, len(value))}
	}
	// From a user's UnmarshalJSON or UnmarshalText.
	return zero, Misfit{fmt.Sprintf("the value does not fit %s: %s", owner, err)}
}

// codeOf is the number of an error in Millstream's catalogue; 0 if it is not in the catalogue.
func codeOf(err error) uint32 {
	var misfit Misfit
	if errors.As(err, &misfit) {
		return misfitCode
	}
	return 0
}
