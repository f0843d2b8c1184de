// Package customresources serves CustomResourceDefinitions and the objects that they define.
//
// Nouns. A definition, or CRD, is an object of the built-in group apiextensions.k8s.io. Its instances are the custom
// resources. In upstream, controllers process a CRD after the CRD is written. Here the write itself does the
// controllers' work.
//
// The path of a CRD through the package:
//
//  1. reserved.go refuses a CRD whose instances would be stored where other objects are.
//  2. naming.go decides in the write which of the wanted names are free, and sets the conditions.
//  3. registry.go claims the names in the batch of the write, and decides again if another CRD has taken a name in the
//     meantime.
//  4. reader.go reads the CRD from the newest view, for the code that serves or describes its instances.
//  5. handler.go serves the instances with one of upstream's handlers for each state of a CRD.
//  6. instances.go makes the stores of the instances.
package customresources
