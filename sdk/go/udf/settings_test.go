package udf

import (
	"errors"
	"os"
	"strings"
	"testing"
)

func TestConfigHasTheMembersOfTheStructAndNoOthers(t *testing.T) {
	settings := struct {
		Threshold float64 `json:"threshold"`
		Regions   []string
	}{Threshold: 1}
	if err := Config(&settings); err != nil || settings.Threshold != 1 {
		t.Fatalf("without a config: %v, %v", settings, err)
	}
	t.Setenv(configVariable, `{"threshold": 2.5, "regions": ["eu"]}`)
	if err := Config(&settings); err != nil || settings.Threshold != 2.5 || settings.Regions[0] != "eu" {
		t.Fatalf("with one: %v, %v", settings, err)
	}
	for _, text := range []string{`{"treshold": 2}`, `{"threshold": "high"}`} {
		t.Setenv(configVariable, text)
		if err := Config(&settings); err == nil || !strings.Contains(err.Error(), "does not fit") {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestSettingsThatComeWithAStream(t *testing.T) {
	t.Setenv(configVariable, "")
	some := map[string]string{"key": "hunter2"}
	fresh := &given{}
	if err := fresh.take(`{"threshold": 2}`, some); err != nil || fresh.configText() != `{"threshold": 2}` {
		t.Fatalf("%v, %v", err, fresh.configText())
	}
	// A stream that brings none, of another pipeline, changes nothing; one with others does.
	if err := errors.Join(fresh.take("", nil), fresh.take("", map[string]string{"other": "x"})); err != nil {
		t.Fatal(err)
	}
	if _, known := fresh.secret("key"); known || fresh.configText() != "{}" {
		t.Error("the settings of an earlier stream are left")
	}
	for name, read := range map[string]func(*given){
		"config": func(g *given) { g.configText() },
		"secret": func(g *given) { g.secret("key") },
	} {
		early := &given{}
		if err := early.take("", nil); err != nil {
			t.Error(err)
		}
		read(early)
		if err := early.take(`{"threshold": 2}`, some); err == nil || !strings.Contains(err.Error(), "before it had any") {
			t.Errorf("%s: %v", name, err)
		}
	}
	t.Setenv(configVariable, `{"threshold": 3}`)
	started := &given{}
	if started.configText() != `{"threshold": 3}` || started.take(`{"threshold": 4}`, nil) != nil ||
		started.configText() != `{"threshold": 4}` {
		t.Errorf("got %v", started.configText())
	}
}

func TestSecretsLeaveTheEnvironment(t *testing.T) {
	t.Setenv(secretsVariable, `{"key": "hunter2"}`)
	if value, err := Secret("key"); err != nil || value != "hunter2" {
		t.Fatalf("%q, %v", value, err)
	}
	if _, left := os.LookupEnv(secretsVariable); left {
		t.Error("the secrets are still in the environment")
	}
	if _, err := Secret("kye"); err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("%v", err)
	}
}
