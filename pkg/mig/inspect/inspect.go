// Package inspect compares the partitions of a node with a MIG layout, and writes them down as one.
// It is for the plugin program's commands "mig-layout assert" and "mig-layout export", which look at
// the hardware themselves, beside a plugin that runs. It changes nothing. It must not know how the
// hardware is read, nor the API server.
package inspect

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/mig/layout"
	"github.com/gpu-dra/driver/pkg/pci"
)

// Scanner looks at the hardware once; ledger.Marker is one.
type Scanner interface {
	Scan(ctx context.Context) (inventory.Snapshot, error)
}

// NoDriverError tells that there is no GPU driver to ask.
type NoDriverError struct {
	// Missing is what stands in the way, for people.
	Missing string
	Err     error
}

func (e *NoDriverError) Error() string {
	return fmt.Sprintf("no GPU driver answers, so it is not known how GPUs are partitioned: %s", e.Missing)
}

func (e *NoDriverError) Unwrap() error { return e.Err }

// UnreadableError tells that GPUs do not say how they are partitioned.
type UnreadableError struct {
	// GPUs are the GPUs, each with the reason.
	GPUs []string
}

func (e *UnreadableError) Error() string {
	return fmt.Sprintf("%d GPUs do not say how they are partitioned: %s", len(e.GPUs), strings.Join(e.GPUs, "; "))
}

// DifferentError tells that GPUs are not as a layout says.
type DifferentError struct {
	Config string
	GPUs   int
}

func (e *DifferentError) Error() string {
	return fmt.Sprintf("%d GPUs are not as MIG layout %q says", e.GPUs, e.Config)
}

// Export writes the layout that the node has now, as a file whose only configuration has that name.
// Errors to tell apart: *NoDriverError, *UnreadableError.
func Export(ctx context.Context, scanner Scanner, config string, out io.Writer) error {
	s, err := look(ctx, scanner)
	if err != nil {
		return err
	}
	text, err := layout.Export(config, s)
	if err == nil {
		_, err = out.Write(text)
	}
	return err
}

// Assert compares the node with a configuration of a file and writes a line for each GPU that
// differs. It does not matter who made a partition, nor where on its GPU that is. Errors to tell
// apart: *DifferentError, *NoDriverError, *UnreadableError, *layout.UnknownConfigError.
func Assert(ctx context.Context, scanner Scanner, file layout.File, config string, out io.Writer) error {
	s, err := look(ctx, scanner)
	if err != nil {
		return err
	}
	layouts, err := file.Select(config, s)
	if err != nil {
		return err
	}
	different := layouts.Compare(s)
	for _, d := range different {
		if _, err := fmt.Fprintln(out, d); err != nil {
			return err
		}
	}
	if len(different) > 0 {
		return &DifferentError{Config: config, GPUs: len(different)}
	}
	_, err = fmt.Fprintf(out, "%d GPUs are as MIG layout %q says\n", len(layouts), config)
	return err
}

// look gives a snapshot that knows the partitions of every GPU of the node.
func look(ctx context.Context, scanner Scanner) (inventory.Snapshot, error) {
	s, err := scanner.Scan(ctx)
	if err != nil {
		return s, err
	}
	if !s.Driver.Present {
		return s, &NoDriverError{Missing: s.Driver.Missing, Err: s.Driver.Err}
	}
	var unread []string
	for _, u := range s.Unusable {
		if u.Cause == inventory.CauseWithheld {
			continue // another driver has it, and NVML does not know it
		}
		unread = append(unread, fmt.Sprintf("%s: %s", u.PCI, u.Reason))
	}
	for _, p := range s.Problems {
		if p.PCI != (pci.Address{}) && strings.HasPrefix(p.Fact, "mig") {
			unread = append(unread, fmt.Sprintf("%s: %s: %v", p.PCI, p.Fact, p.Err))
		}
	}
	if len(unread) > 0 {
		return s, &UnreadableError{GPUs: unread}
	}
	return s, nil
}
