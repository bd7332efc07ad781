package tenancy

import (
	"encoding/json"
	"net/http"
)

// Version is that of the endpoint's documents: within it members are added and never change.
const Version = "v1"

// Path is where the endpoint is.
const Path = "/" + Version + "/devices"

// Document is what the endpoint answers.
type Document struct {
	Version string `json:"version"`
	Driver  string `json:"driver"`
	// Pool is the node's name.
	Pool    string   `json:"pool"`
	Devices []Device `json:"devices"`
}

// Handler answers GET requests with a Document.
func (r *Register) Handler(driver, pool string) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+Path, func(w http.ResponseWriter, _ *http.Request) {
		devices, err := r.Tenants()
		if err != nil {
			http.Error(w, "the records of claims cannot be read: "+err.Error(), http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		encoder := json.NewEncoder(w)
		encoder.SetIndent("", "  ")
		// Who asked may have gone.
		_ = encoder.Encode(Document{Version: Version, Driver: driver, Pool: pool, Devices: devices})
	})
	return mux
}
