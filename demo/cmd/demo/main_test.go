package main

import (
	"bytes"
	"context"
	"os"
	"strings"
	"testing"
)

func TestExitCodes(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for name, tc := range map[string]struct {
		ctx    context.Context
		args   []string
		code   int
		stderr string
	}{
		"help":           {t.Context(), []string{"-h"}, 0, "-preset"},
		"unknown flag":   {t.Context(), []string{"--fast"}, 2, "-fast"},
		"unknown preset": {t.Context(), []string{"--preset=abacus"}, 1, "two-islands"},
		"interrupted":    {ended, nil, interrupted, "context canceled"},
	} {
		t.Run(name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			if code := run(tc.ctx, tc.args, &stdout, &stderr); code != tc.code || !strings.Contains(stderr.String(), tc.stderr) {
				t.Errorf("exit code %d, want %d; stderr %q, want %q", code, tc.code, stderr.String(), tc.stderr)
			}
		})
	}
}

func TestColourIsForTerminals(t *testing.T) {
	environment := func(values map[string]string) func(string) (string, bool) {
		return func(name string) (string, bool) { value, ok := values[name]; return value, ok }
	}
	terminal, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer terminal.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	if !colour(terminal, environment(nil)) || !colour(terminal, environment(map[string]string{"NO_COLOR": ""})) {
		t.Error("no colour on a terminal")
	}
	if colour(terminal, environment(map[string]string{"NO_COLOR": "1"})) || colour(terminal, environment(map[string]string{"TERM": "dumb"})) {
		t.Error("colour where it is not wanted")
	}
	if colour(null, environment(nil)) || colour(&bytes.Buffer{}, environment(nil)) {
		t.Error("colour without a terminal")
	}
}
