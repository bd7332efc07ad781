package agent

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/gpu-dra/driver/pkg/journal"
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

// removeOrphans removes CDI specs of claims that have no record: the claim specs and the ones
// that the library makes for metadata. A record is written before any spec and removed after it,
// so a spec without one is what a killed process or a cancelled call left.
func (a *Agent) removeOrphans(ctx context.Context) {
	logger := klog.FromContext(ctx)
	specs, err := a.specs.Claims()
	if err != nil {
		logger.Error(err, "Left-over CDI specs cannot be looked for")
		return
	}
	for _, uid := range specs {
		if a.hasNoRecord(uid) {
			logger.Info("Removed the CDI spec of a claim without a record", "claimUID", uid, "error", a.specs.RemoveClaim(uid))
		}
	}
	for path, uid := range a.metadataSpecs() {
		if a.hasNoRecord(uid) {
			logger.Info("Removed the metadata of a claim without a record", "claimUID", uid, "error", os.Remove(path))
		}
	}
}

func (a *Agent) hasNoRecord(uid types.UID) bool {
	_, err := a.journal.Load(uid)
	return errors.Is(err, journal.ErrNotFound)
}

// metadataSpecs lists the library's specs by path, with the claim of each; their names are
// DRIVER_metadata_UID_REQUEST.json.
func (a *Agent) metadataSpecs() map[string]types.UID {
	entries, err := os.ReadDir(a.config.CDIDir)
	if err != nil {
		return nil
	}
	found := map[string]types.UID{}
	for _, e := range entries {
		rest, ours := strings.CutPrefix(e.Name(), a.config.DriverName+"_metadata_")
		uid, _, named := strings.Cut(rest, "_")
		if ours && named && strings.HasSuffix(rest, ".json") && e.Type().IsRegular() {
			found[filepath.Join(a.config.CDIDir, e.Name())] = types.UID(uid)
		}
	}
	return found
}
