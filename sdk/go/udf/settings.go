package udf

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"sync"
)

const (
	configVariable  = "MILLSTREAM_UDF_CONFIG"
	secretsVariable = "MILLSTREAM_UDF_SECRETS"
)

// Config reads what `config` beside the function in the pipeline file says into a struct, or anything that JSON can be
// read into. A member that the struct does not have is an error, as is one of another type; one that the config does not
// have keeps its value.
func Config(into any) error {
	text := os.Getenv(configVariable)
	if text == "" {
		text = "{}"
	}
	decoder := json.NewDecoder(bytes.NewReader([]byte(text)))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		return fmt.Errorf("`config` of the pipeline file does not fit: %w", err)
	}
	return nil
}

// secrets are removed from the environment when they are read, so that no program that the function starts has them.
var secrets = sync.OnceValue(func() map[string]string {
	found := map[string]string{}
	if err := json.Unmarshal([]byte(os.Getenv(secretsVariable)), &found); err != nil {
		found = nil
	}
	os.Unsetenv(secretsVariable)
	return found
})

// Secret is the value of a secret, to which `secrets` beside the function in the pipeline file refers.
func Secret(name string) (string, error) {
	value, known := secrets()[name]
	if !known {
		return "", fmt.Errorf("there is no secret %q: add it to `secrets` beside the function in the pipeline file", name)
	}
	return value, nil
}
