package udf

import (
	"bytes"
	"encoding/json"
	"errors"
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
//
// A process that Millstream has not started gets it with the first stream: there it is read in the function, not before.
func Config(into any) error {
	decoder := json.NewDecoder(bytes.NewReader([]byte(settings.configText())))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		return fmt.Errorf("`config` of the pipeline file does not fit: %w", err)
	}
	return nil
}

// Secret is the value of a secret, to which `secrets` beside the function in the pipeline file refers. As for [Config],
// a process that Millstream has not started gets it with the first stream.
func Secret(name string) (string, error) {
	value, known := settings.secret(name)
	if !known {
		return "", fmt.Errorf("there is no secret %q: add it to `secrets` beside the function in the pipeline file", name)
	}
	return value, nil
}

// given are the settings of the process: those of its environment, or of the newest stream that has brought some.
type given struct {
	mutex   sync.Mutex
	config  string
	secrets map[string]string
	// Whether a stream has brought some.
	hasCome bool
	// Whether the function has read some, and there were none.
	isMissed bool
}

var settings = &given{}

// takeEnvironment reads secrets before the function starts any program, and removes them, so that none has them.
func (g *given) takeEnvironment() {
	g.mutex.Lock()
	defer g.mutex.Unlock()
	g.read()
}

func (g *given) read() {
	if text, is := os.LookupEnv(secretsVariable); is {
		g.secrets = nil
		_ = json.Unmarshal([]byte(text), &g.secrets)
		os.Unsetenv(secretsVariable)
	}
	if text := os.Getenv(configVariable); text != "" && !g.hasCome {
		g.config = text
	}
}

func (g *given) configText() string {
	g.mutex.Lock()
	defer g.mutex.Unlock()
	g.read()
	if g.config == "" {
		g.isMissed = g.isMissed || !g.hasCome
		return "{}"
	}
	return g.config
}

func (g *given) secret(name string) (string, bool) {
	g.mutex.Lock()
	defer g.mutex.Unlock()
	g.read()
	value, known := g.secrets[name]
	g.isMissed = g.isMissed || !known && !g.hasCome
	return value, known
}

// take takes what a stream brings. An error says that the function has gone on without it.
func (g *given) take(config string, secrets map[string]string) error {
	if config == "" && len(secrets) == 0 {
		return nil
	}
	g.mutex.Lock()
	defer g.mutex.Unlock()
	g.read()
	if g.isMissed && !g.hasCome {
		return errors.New("the function has read its config or a secret before it had any: with `address` in the pipeline " +
			"file, they come with the first stream. Read them in the function, or start the process with " + configVariable +
			" and " + secretsVariable + ", as JSON")
	}
	g.config, g.secrets, g.hasCome = config, secrets, true
	return nil
}
