package main

import (
	"bytes"
	"strings"
	"testing"
)

func TestRun(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		want int
		says string
	}{
		"help":              {args: []string{"-h"}, want: 0, says: "up|down"},
		"an unknown flag":   {args: []string{"-up", "up"}, want: wrongUsage, says: "-up"},
		"no command":        {want: wrongUsage, says: "usage"},
		"two commands":      {args: []string{"up", "down"}, want: wrongUsage, says: "usage"},
		"no such directory": {args: []string{"-repository", "/dev/null", "down"}, want: failed, says: "folder for what is built"},
	} {
		t.Run(name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			if got := run(t.Context(), c.args, &stdout, &stderr); got != c.want {
				t.Errorf("exit code %d, want %d: %s", got, c.want, stderr.String())
			}
			if !strings.Contains(stderr.String(), c.says) {
				t.Errorf("it does not say %q: %s", c.says, stderr.String())
			}
		})
	}
}
