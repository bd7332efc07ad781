package agent

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/klog/v2"
)

// tempAge is the age from which a temporary file cannot belong to a write in progress.
const tempAge = 5 * time.Minute

// removeTemps removes what killed processes left of files that they were writing in the data
// directory; the directories below it sweep themselves.
func (a *Agent) removeTemps(ctx context.Context) {
	entries, err := os.ReadDir(a.config.DataDir())
	if err != nil {
		return
	}
	for _, e := range entries {
		ours := strings.HasPrefix(e.Name(), "."+filepath.Base(a.config.CDIHook)) || strings.HasPrefix(e.Name(), "."+nvlinkFile)
		info, err := e.Info()
		if !ours || !e.Type().IsRegular() || err != nil || time.Since(info.ModTime()) < tempAge {
			continue
		}
		klog.FromContext(ctx).Info("Removed a file that a killed process did not finish", "file", e.Name(), "error", os.Remove(a.stateDir(e.Name())))
	}
}
