package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestCommandRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		says string
	}{
		"an unknown flag":    {[]string{"--nonsense"}, "nonsense"},
		"a bad log format":   {[]string{"--logging-format=verse"}, "verse"},
		"too many arguments": {[]string{"x"}, "x"},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := command("v1")
			cmd.SetArgs(c.args)
			if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), c.says) {
				t.Error(err)
			}
		})
	}
}

func TestRunRefuses(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		settings settings
		says     string
	}{
		"no certificate":    {settings{}, "--tls-cert-file"},
		"a bad certificate": {settings{certFile: file, keyFile: file}, file},
	} {
		t.Run(name, func(t *testing.T) {
			if err := run(t.Context(), c.settings, "v1"); err == nil || !strings.Contains(err.Error(), c.says) {
				t.Error(err)
			}
		})
	}
}
