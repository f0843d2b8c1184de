package s3
