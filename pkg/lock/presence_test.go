package lock

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func join(t *testing.T, path string) *Presence {
	t.Helper()
	p, err := Join(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func leave(t *testing.T, p *Presence) {
	t.Helper()
	if err := p.Leave(); err != nil {
		t.Error(err)
	}
}

func TestAloneOnlyWithoutOthers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "present")
	a, b := join(t, path), join(t, path)
	if a.Alone() || b.Alone() {
		t.Error("one of two is alone")
	}
	leave(t, b)
	if !a.Alone() {
		t.Error("the last one is not alone")
	}
	leave(t, a)
}

func TestANewcomerWaitsForTheCleanUp(t *testing.T) {
	path := filepath.Join(t.TempDir(), "present")
	a := join(t, path)
	if !a.Alone() {
		t.Fatal("not alone")
	}
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := Join(short, path); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("joined beside a process that cleans up: %v", err)
	}
	joined := make(chan *Presence)
	go func() {
		p, err := Join(t.Context(), path)
		if err != nil {
			t.Error(err)
		}
		joined <- p
	}()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	b := <-joined
	if _, err := os.Stat(path); err != nil {
		t.Errorf("the newcomer holds a file without a name: %v", err)
	}
	c := join(t, path)
	if b.Alone() || c.Alone() {
		t.Error("the two newcomers do not see each other")
	}
	for _, p := range []*Presence{a, b, c} {
		leave(t, p)
	}
}

func TestJoinErrors(t *testing.T) {
	if _, err := Join(t.Context(), filepath.Join(t.TempDir(), "missing", "present")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a directory that is not there gives %v", err)
	}
}
