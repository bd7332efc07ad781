// Package storage keeps the objects of the small API server in memory: collections under one rising
// version, the history that watches follow, and the rules by which writes and patches change objects.
//
// It is for package kubeapi alone. It knows no HTTP, no encodings and no selectors beyond the fields
// that they may name, and nothing of who asks.
package storage
