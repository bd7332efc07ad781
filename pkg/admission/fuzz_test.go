package admission_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"

	"github.com/gpu-dra/driver/pkg/admission"
)

// FuzzHandler: whatever is posted, the answer is a review with the request's UID, or says that this was none.
func FuzzHandler(f *testing.F) {
	f.Add([]byte(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u","operation":"CREATE","resource":{"resource":"resourceclaims"},"object":{"spec":{}}}}`))
	f.Add([]byte(`{"apiVersion":"admission.k8s.io/v1","request":{}}`))
	f.Add([]byte(`{"request":null}`))
	f.Add([]byte(`[`))
	handler := admission.Handler(reviewer)
	f.Fuzz(func(t *testing.T, body []byte) {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, admission.Path, bytes.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		if w.Code == http.StatusBadRequest {
			return
		}
		var asked, answered admissionv1.AdmissionReview
		if w.Code != http.StatusOK || json.Unmarshal(body, &asked) != nil || json.Unmarshal(w.Body.Bytes(), &answered) != nil {
			t.Fatalf("%d: %s", w.Code, w.Body)
		}
		if answered.Response == nil || answered.Response.UID != asked.Request.UID {
			t.Errorf("the answer %s has not the UID %q", w.Body, asked.Request.UID)
		}
	})
}
