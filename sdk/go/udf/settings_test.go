package udf

import (
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
