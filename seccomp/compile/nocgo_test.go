//go:build !cgo

package compile

const cgo = false
