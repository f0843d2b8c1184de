package apiserver

import (
	"context"
	"slices"

	"k8s.io/apiserver/pkg/authentication/user"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/logplane/logplane/internal/apiserver/loopback"
)

// guestOf returns the user whose place a request takes, and false for a request that needs no place.
func (s *Server) guestOf(ctx context.Context) (name string, ok bool) {
	user, _ := apirequest.UserFrom(ctx)
	if loopback.Is(ctx) || s.exempt(user) {
		return "", false
	}
	return user.GetName(), true
}

// exempt says whether a user is always served. If nobody has to show credentials, everybody is an administrator, and
// nobody is exempt.
func (s *Server) exempt(u user.Info) bool {
	return s.config.Authentication.Configured() && slices.Contains(u.GetGroups(), user.SystemPrivilegedGroup)
}
