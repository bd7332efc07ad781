package admission

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
)

const (
	// Path is where the API server asks; NVIDIA's webhook has the same.
	Path = "/validate-resource-claim-parameters"
	// maxBody bounds a request: twice what etcd takes, since an update has the old object too,
	// and some for what is around them.
	maxBody = 4 << 20
)

// Handler serves reviews at Path, and readiness at /readyz and /healthz.
func Handler(reviewer Reviewer) http.Handler {
	mux := http.NewServeMux()
	ok := func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok\n") }
	mux.HandleFunc("GET /readyz", ok)
	mux.HandleFunc("GET /healthz", ok)
	mux.HandleFunc("POST "+Path, func(w http.ResponseWriter, r *http.Request) {
		review, status, err := read(w, r)
		if err != nil {
			klog.FromContext(r.Context()).Error(err, "A request could not be read")
			http.Error(w, err.Error(), status)
			return
		}
		response := reviewer.Review(review.Request)
		if !response.Allowed {
			klog.FromContext(r.Context()).V(2).Info("Refused", "resource", review.Request.Resource.Resource,
				"object", klog.KRef(review.Request.Namespace, review.Request.Name), "why", response.Result.Message)
		}
		answer := admissionv1.AdmissionReview{
			TypeMeta: metav1.TypeMeta{APIVersion: admissionv1.SchemeGroupVersion.String(), Kind: "AdmissionReview"}, Response: response,
		}
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(answer); err != nil {
			klog.FromContext(r.Context()).Error(err, "The API server did not take an answer")
		}
	})
	return mux
}

// read gives the review that the API server sent, with its request.
func read(w http.ResponseWriter, r *http.Request) (*admissionv1.AdmissionReview, int, error) {
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return nil, http.StatusUnsupportedMediaType, fmt.Errorf("the content type %q is not application/json", r.Header.Get("Content-Type"))
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		status := http.StatusBadRequest
		if tooLong := new(http.MaxBytesError); errors.As(err, &tooLong) {
			status = http.StatusRequestEntityTooLarge
		}
		return nil, status, fmt.Errorf("read the request: %w", err)
	}
	var review admissionv1.AdmissionReview
	if err := json.Unmarshal(body, &review); err != nil {
		return nil, http.StatusBadRequest, fmt.Errorf("the body is no AdmissionReview: %w", err)
	}
	if review.Request == nil || review.APIVersion != admissionv1.SchemeGroupVersion.String() {
		return nil, http.StatusBadRequest, fmt.Errorf("the body is no AdmissionReview of %s with a request", admissionv1.SchemeGroupVersion)
	}
	return &review, 0, nil
}
